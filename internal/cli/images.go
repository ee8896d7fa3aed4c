package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
	"codehub/internal/web/dashboard/catalogue"
)

// imagesCmd also has what the server's program adds for the images of its own machine.
type imagesCmd struct {
	Retry imagesRetryCmd `cmd:"" help:"Build an image again."`
	kong.Plugins
}

// imagesRetryCmd makes an image again whose build on the server failed.
type imagesRetryCmd struct {
	serverFlags
	terminal.Format
	Name string `arg:"" help:"The image, as codehub status lists it: ide, slim or full."`
}

func (i imagesRetryCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	image, err := c.RetryImage(ctx, i.Name)
	if err != nil {
		return err
	}
	return i.Print(k.Stdout, image, fmt.Sprintf("%s: %s\n", image.Image, buildState(image)))
}

// buildTable lists the images that the server makes; "" without any.
func buildTable(images []api.ImageBuild, now time.Time) string {
	if len(images) == 0 {
		return ""
	}
	rows := [][]string{{"IMAGE", "NAME", "STATE", "TIME"}}
	var logs strings.Builder
	for _, i := range images {
		took := ""
		if i.StartedAt != nil {
			end := now
			if i.EndedAt != nil {
				end = *i.EndedAt
			}
			took = catalogue.English.Took(end.Sub(*i.StartedAt))
		}
		rows = append(rows, []string{i.Image, i.Name, buildState(i), took})
		if i.State == "failed" {
			fmt.Fprintf(&logs, "\nThe build of %s failed (%s):\n", i.Image, i.Error)
			for _, line := range i.Log {
				logs.WriteString("  " + line + "\n")
			}
			fmt.Fprintf(&logs, "Try again: codehub images retry %s\n", i.Name)
		}
	}
	return terminal.Table(rows) + logs.String()
}

func buildState(i api.ImageBuild) string {
	if i.State == "making" && i.Steps > 0 {
		return fmt.Sprintf("step %d of %d: %s", i.Step, i.Steps, i.StepText)
	}
	return lowered("builds.", i.State)
}
