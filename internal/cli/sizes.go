package cli

import (
	"context"
	"fmt"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/internal/cli/terminal"
)

type sizesCmd struct {
	serverFlags
	terminal.Format
}

func (s sizesCmd) Run(ctx context.Context, k *kong.Context) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	list, err := c.Sizes(ctx)
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, list, sizeTable(list))
}

func sizeTable(list []api.Size) string {
	rows := [][]string{{"NAME", "CORES", "MEMORY"}}
	for _, s := range list {
		cores, memory := "no limit", "no limit"
		if s.CPUs > 0 {
			cores = fmt.Sprintf("%.4g", s.CPUs)
		}
		if s.MemoryBytes > 0 {
			memory = terminal.Size(s.MemoryBytes)
		}
		rows = append(rows, []string{s.Name, cores, memory})
	}
	return terminal.Table(rows)
}

// size names the size of the next start.
func size(w api.Workspace) string {
	if w.SizeWaits {
		return w.Size + " from the next start on"
	}
	return w.Size
}
