package proc

import (
	"fmt"
	"strings"
	"testing"
)

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

// A failed test shows what matters of its server's log, and not the requests.
func TestExcerptOfLog(t *testing.T) {
	t.Parallel()
	s := &Server{log: &tail{}}
	for n := range 1000 {
		level, msg := "DEBUG", "request"
		switch {
		case n == 5:
			level, msg = "WARN", "early"
		case n%10 == 0:
			level, msg = "INFO", "something"
		case n == 999:
			level, msg = "ERROR", "last"
		}
		fmt.Fprintf(s.log, "time=%d level=%s msg=%s path=/\n", n, level, msg)
	}
	got := strings.Split(s.Excerpt(), "\n")
	if len(got) != 3+1+20 || !strings.Contains(got[1], "msg=early") || !strings.Contains(got[len(got)-2], "msg=last") {
		t.Errorf("%d lines:\n%s", len(got), strings.Join(got, "\n"))
	}
}
