"""What targets of AOTInductor's code share: graphs in the form that it takes, their parts, and what is stored of them."""
