"""Task files that ship with the harness, one YAML file a task."""
