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
