"""Audits whether the history of a job keeps the promises that ESSP makes. Pure; `essp audit` reads and prints."""
