package setting

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Seconds reads fields with the tag type:"seconds": durations in which a number without a
// unit is in seconds.
var Seconds = kong.NamedMapper("seconds", kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text, unit string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		unit = "s"
	}
	d, err := time.ParseDuration(text + unit)
	if err != nil {
		return fmt.Errorf("expected a duration such as 15s, or a number of seconds, but got %q", text)
	}
	target.SetInt(int64(d))
	return nil
}))

// Duration formats a length of time without its zeros: 24h, 1h30m.
func Duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
