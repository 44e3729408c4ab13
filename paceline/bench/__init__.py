"""`paceline bench`: measures the services from outside, as processes that speak gRPC."""
