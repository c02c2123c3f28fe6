"""The four training stages; one file each, meeting through checkpoints and episode files."""
