"""Who may use the server and how much: API keys, quotas, limits, and the guard around every request."""
