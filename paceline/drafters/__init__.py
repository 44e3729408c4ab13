"""Drafters that ship with Paceline, a folder each: `package:paceline.drafters.NAME`."""
