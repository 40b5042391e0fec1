"""The clients' side: HTTP/1.1 requests in, responses out."""
