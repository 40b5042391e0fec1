"""What tests share: scripted peers, clients, the proxy as a process."""
