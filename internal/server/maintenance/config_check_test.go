package maintenance

import (
	"slices"
	"testing"

	"codehub/api"
)

// Every wrong setting is named at once: values of the wrong form, out of bounds, that do not fit
// together, and names that codehub does not have.
func TestConfigCheckNamesEveryProblem(t *testing.T) {
	for name, value := range map[string]string{
		"CODEHUB_SHUTDOWN_TIMEOUT": "soon", "CODEHUB_OIDC_OUTAGE": "9000h", "CODEHUB_LISTN": "127.0.0.1:80",
		"CODEHUB_URL": "http://code.example.com", "CODEHUB_DATA_DIR": t.TempDir(), "CODEHUB_REDIS_URL_FILE": "/nonexistent",
	} {
		t.Setenv(name, value)
	}
	problems, effective := checkEnvironment()
	var named []string
	for _, p := range problems {
		named = append(named, p.Setting)
	}
	slices.Sort(named)
	if want := []string{"CODEHUB_LISTN", "CODEHUB_OIDC_OUTAGE", "CODEHUB_REDIS_URL_FILE", "CODEHUB_SHUTDOWN_TIMEOUT", "CODEHUB_URL"}; !slices.Equal(named, want) {
		t.Errorf("named %v, want %v: %+v", named, want, problems)
	}
	if !slices.ContainsFunc(effective, func(e api.Setting) bool {
		return e.Setting == "CODEHUB_DATA_DIR" && e.From == api.FromEnvironment
	}) {
		t.Errorf("the settings in effect are not shown: %+v", effective)
	}
}
