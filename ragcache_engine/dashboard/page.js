// Says since when nobody has answered. The server cannot: it may be what does not answer.
(function () {
  const silence = document.getElementById("silence");
  const after_ms = 1000 * Number(silence.dataset.afterS);
  let seen = "";
  let changed = Date.now();
  setInterval(function () {
    // The time of what is shown, in seconds since 1970.
    const shown = document.getElementById("seen")?.textContent || "";
    if (shown !== seen) {
      seen = shown;
      changed = Date.now();
    }
    const isSilent = Date.now() - changed > after_ms;
    if (isSilent && silence.hidden) {
      const since = shown ? new Date(1000 * Number(shown)) : new Date(changed);
      silence.textContent =
        "No answer since " + since.toLocaleTimeString("en-GB") + ": what is shown is old.";
    }
    silence.hidden = !isSilent;
    document.body.classList.toggle("silent", isSilent);
  }, 500);
})();
