"""Families of advice that are no rules yet."""
