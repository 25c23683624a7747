"""Results as tables and as JSON documents."""
