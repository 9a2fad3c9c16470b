"""What people and programs see of it: podresources, the page, labels of the Node."""
