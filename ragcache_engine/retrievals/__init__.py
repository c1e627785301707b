"""What retrievers found: told to speculation, remembered for the prompts that follow, counted."""
