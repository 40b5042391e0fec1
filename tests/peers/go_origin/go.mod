module origin

go 1.21
