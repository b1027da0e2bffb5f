"""A recording replayed on another card or under other settings of the allocator."""
