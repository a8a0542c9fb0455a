"""Pages, JSON and Prometheus text over HTTP. Only this package imports aiohttp."""
