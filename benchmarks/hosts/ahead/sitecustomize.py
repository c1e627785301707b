"""Sets the clock of each Python process that finds this folder an hour ahead.

Only what tells the time of day: programs that fake the system's clocks make waits last longer, too.
"""

import time

AHEAD_S = 3600
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + AHEAD_S
time.time_ns = lambda: _time_ns() + AHEAD_S * 10**9
