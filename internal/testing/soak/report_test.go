package soak

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// report counts the outcomes of all homes by kind of fault.
var report counts

type counts struct {
	mu    sync.Mutex
	kinds []string
	rows  map[string]*row
}

type row struct {
	rounds     int
	outcomes   map[outcome]int
	operations map[string]int // operations that ran at the time of the fault, by kind
}

func (c *counts) row(kind string) *row {
	if c.rows == nil {
		c.rows = map[string]*row{}
	}
	if c.rows[kind] == nil {
		c.rows[kind] = &row{outcomes: map[outcome]int{}, operations: map[string]int{}}
		c.kinds = append(c.kinds, kind)
	}
	return c.rows[kind]
}

func (c *counts) countRound(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row(kind).rounds++
}

func (c *counts) countHome(kind string, o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row(kind).outcomes[o]++
}

func (c *counts) countOperations(kind string, operations map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for operation, n := range operations {
		c.row(kind).operations[operation] += n
	}
}

// print writes the table to standard output and to a file.
func (c *counts) print() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kinds) == 0 {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-64s %7s %9s %6s %8s %6s\n", "fault", "rounds", "homes ok", "lost", "damaged", "stuck")
	for _, kind := range c.kinds {
		r := c.rows[kind]
		fmt.Fprintf(&b, "%-64s %7d %9d %6d %8d %6d\n", kind, r.rounds, r.outcomes[ok], r.outcomes[lost], r.outcomes[damaged], r.outcomes[stuck])
	}
	b.WriteString("\noperations that ran at the time of the fault\n")
	for _, kind := range c.kinds {
		if len(c.rows[kind].operations) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%-64s", kind)
		for _, operation := range slices.Sorted(maps.Keys(c.rows[kind].operations)) {
			fmt.Fprintf(&b, " %s %d", operation, c.rows[kind].operations[operation])
		}
		b.WriteString("\n")
	}
	fmt.Print(b.String())
	_ = os.WriteFile(filepath.Join(env.output, "counts.txt"), []byte(b.String()), 0o644)
}
