"""Real HTTP/2 servers and real HTTP/1.1 clients, with h2ping between them."""
