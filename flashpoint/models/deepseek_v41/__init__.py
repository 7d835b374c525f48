"""DeepSeek-V4.1-Flash: causal encoder-decoder with CSA2 sparse attention (spec `deepseek-v4.1-flash.md`)."""
