package main

import (
	"fmt"

	"example.com/basket"
)

func main() { fmt.Println(basket.Total([]int{250, 199, 51})) }
