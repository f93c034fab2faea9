"""Checkpoints and models of jobs for people: lists them, verifies them, compares them, and makes smaller copies."""
