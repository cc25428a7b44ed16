"""x"""
compare_requests=None
