package dashboard

import "testing"

// The pages say whether packages can be installed, and what is lost when a workspace stops.
func TestPagesDescribeKeptFiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		sudo             bool
		english, korean  string
		not, notInKorean string
	}{
		{false, "System packages cannot be installed here; put tools in your home folder, or choose another image.", "시스템 패키지는 설치할 수 없습니다.", "sudo", "sudo"},
		{true, "Everything outside it, such as packages that you install with sudo, is lost when the workspace stops.", "모두 삭제됩니다.", "cannot be installed", "설치할 수 없습니다"},
	} {
		w := newWorld(t, func(c *Config) { c.Sudo = tc.sudo })
		b := w.loggedIn()
		id := w.add("project", running)
		for _, path := range []string{"/workspaces/new", "/workspaces/" + string(id)} {
			page := b.get(path).body
			contains(t, path, page, "Only the home folder (/home/coder) is kept.", tc.english)
			lacks(t, path, page, tc.not)
			page = b.get(path, "Accept-Language", "ko").body
			contains(t, path+" in Korean", page, "홈 폴더(/home/coder)만 유지됩니다.", tc.korean)
			lacks(t, path+" in Korean", page, tc.notInKorean)
		}
	}
}
