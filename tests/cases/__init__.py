"""Field cases: reported failures of programs of this kind, each as a black-box test (cases/ids.txt)."""
