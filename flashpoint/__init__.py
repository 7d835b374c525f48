"""flashpoint: serve DeepSeek-V4.1-Flash class models to coding agents, and measure how fast that is."""

__version__ = "0.1.0"
