"""What sparse features do: the analyses of Green et al. 2013."""
