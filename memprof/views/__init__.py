"""A recorded run as all else looks at it: windows with lifetimes, steps, owners and lines."""
