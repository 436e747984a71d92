"""Photographs: decoding one, reading many."""
