"""Answers -> text and JSON. Only this package and pictures import rich."""
