package cli

import (
	"context"
	"fmt"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type sizesCmd struct {
	serverFlags
	terminal.Format
}

func (s sizesCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Sizes(ctx)
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, list, sizeTable(list))
}

func sizeTable(list []api.Size) string {
	rows := [][]string{{"NAME", "CORES", "MEMORY", "DISK"}}
	for _, s := range list {
		cores, memory, disk := "no limit", "no limit", "no limit"
		if s.CPUs > 0 {
			cores = fmt.Sprintf("%.4g", s.CPUs)
		}
		if s.MemoryBytes > 0 {
			memory = terminal.Size(s.MemoryBytes)
		}
		if s.DiskBytes > 0 {
			disk = terminal.Size(s.DiskBytes)
		}
		rows = append(rows, []string{s.Name, cores, memory, disk})
	}
	return terminal.Table(rows)
}

// home is how much space the home uses, and may use; "" if neither is known.
func home(w api.Workspace) string {
	limit := ""
	if w.HomeLimitBytes > 0 {
		limit = terminal.Size(w.HomeLimitBytes)
	}
	switch {
	case w.HomeBytes == nil && limit == "":
		return ""
	case w.HomeBytes == nil:
		return "at most " + limit
	case limit == "":
		return terminal.Size(*w.HomeBytes)
	case !w.HomeLimitEnforced && *w.HomeBytes > w.HomeLimitBytes:
		return terminal.Size(*w.HomeBytes) + " of " + limit + "; over the limit, see: codehub start --free-space"
	}
	return terminal.Size(*w.HomeBytes) + " of " + limit
}

// size names the size of the next start.
func size(w api.Workspace) string {
	if w.SizeWaits {
		return w.Size + " from the next start on"
	}
	return w.Size
}
