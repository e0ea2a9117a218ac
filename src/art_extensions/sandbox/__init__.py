"""Limited processes for what is not trusted: code that is rewarded, and checks of texts by libraries."""
