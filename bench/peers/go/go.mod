module h2pingbench

go 1.24
