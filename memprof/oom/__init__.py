"""Failed allocations: what was asked, what filled the device, what would have let it go on."""
