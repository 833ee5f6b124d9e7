"""The release, in one place: the build reads it from here, so that no command has to look its own metadata up."""

VERSION = "0.1.0"
