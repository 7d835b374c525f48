"""Matrix products with the activation quantisation of the stored form."""
