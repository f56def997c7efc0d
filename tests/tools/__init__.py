"""The tools that people train with: a loaded bundle acts in each as the original does, or refuses clearly."""
