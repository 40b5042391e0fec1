"""Upstream side: HTTP/2 connections to one HTTPS endpoint."""
