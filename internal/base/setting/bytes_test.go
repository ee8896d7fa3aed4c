package setting

import "testing"

func TestBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"512": 512, "64k": 64 << 10, "10m": 10 << 20, "4g": 4 << 30, " 4G ": 4 << 30, "64Ki": 64 << 10, "10Mi": 10 << 20, "4Gi": 4 << 30, "1Ti": 1 << 40, "0": 0,
		"": -1, "g": -1, "Gi": -1, "4i": -1, "4gg": -1, "4Gii": -1, "-1": -1, "1.5Gi": -1, "9999999Ti": -1,
	} {
		if got, err := Bytes(text); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

// A size is written in the unit in which it was entered.
func TestFormatBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 12_345: "12 KiB", 512 << 20: "512 MiB", 1<<30 - 1: "1 GiB",
		4 << 30: "4 GiB", 4_300_000_000: "4 GiB", 17_600_000_000: "16.4 GiB", 50 << 30: "50 GiB", 3 << 39: "1.5 TiB", 5 << 50: "5120 TiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
