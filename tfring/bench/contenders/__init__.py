"""The libraries measured; each file is imported only by that library's own ranks."""
