"""Files to examples: folders of photographs, tables, IDX and CIFAR files."""
