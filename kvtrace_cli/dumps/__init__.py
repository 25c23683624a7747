"""Reading what a run left behind: dumps, journals and the run directory."""
