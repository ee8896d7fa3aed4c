package proc

import "testing"

func TestFreeAddressIsGivenOnce(t *testing.T) {
	t.Parallel()
	const n = 1000 // of 12,768 ports: without a reservation two of them would be the same
	given := make(map[string]bool, n)
	for range n {
		address, err := FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		if given[address] {
			t.Fatalf("%s was given twice", address)
		}
		given[address] = true
	}
}
