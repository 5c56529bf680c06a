"""What the documentation is made of besides its pages."""
