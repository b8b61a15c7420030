"""The live path: which steps are measured, what is handed over, who writes it down. `watch()`."""
