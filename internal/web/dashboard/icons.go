package dashboard

import "html/template"

// icons are drawn on a 24×24 grid with a stroke of the text's colour.
var icons = map[string]string{
	"plus":      `<path d="M12 5v14M5 12h14"/>`,
	"open":      `<path d="M14 5h5v5M19 5l-8 8M17 14v4a1.5 1.5 0 0 1-1.5 1.5h-9A1.5 1.5 0 0 1 5 18V9a1.5 1.5 0 0 1 1.5-1.5H10"/>`,
	"play":      `<path d="M8 5.5v13l10.5-6.5z"/>`,
	"stop":      `<rect x="6.5" y="6.5" width="11" height="11" rx="2"/>`,
	"x":         `<path d="M6.5 6.5l11 11M17.5 6.5l-11 11"/>`,
	"undo":      `<path d="M9 14l-4.5-4.5L9 5M4.5 9.5H14a5 5 0 0 1 0 10h-3"/>`,
	"retry":     `<path d="M19 12a7 7 0 1 1-2.2-5.1M19 4.5V8.5h-4"/>`,
	"pencil":    `<path d="M5 19l.8-3.6L16 5.2a1.7 1.7 0 0 1 2.4 0l.4.4a1.7 1.7 0 0 1 0 2.4L8.6 18.2z"/>`,
	"trash":     `<path d="M4.5 7h15M10 7V5.5A1 1 0 0 1 11 4.5h2a1 1 0 0 1 1 1V7M6.5 7l.7 11a1.5 1.5 0 0 0 1.5 1.5h6.6a1.5 1.5 0 0 0 1.5-1.5l.7-11M10 11v5M14 11v5"/>`,
	"bolt":      `<path d="M13 3.5L5.5 13.5H12l-1 7 7.5-10H12z"/>`,
	"sparkle":   `<path d="M12 4l1.8 5.2L19 11l-5.2 1.8L12 18l-1.8-5.2L5 11l5.2-1.8z"/>`,
	"more":      `<circle cx="5.5" cy="12" r="1.2"/><circle cx="12" cy="12" r="1.2"/><circle cx="18.5" cy="12" r="1.2"/>`,
	"alert":     `<path d="M12 4.5L3.5 19h17zM12 10v4.2M12 16.6v.1"/>`,
	"info":      `<circle cx="12" cy="12" r="8"/><path d="M12 11.2v4.6M12 8.3v.1"/>`,
	"check":     `<path d="M5.5 12.5l4.2 4.2L18.5 7.5"/>`,
	"copy":      `<rect x="9" y="9" width="10.5" height="10.5" rx="2"/><path d="M15 9V6.5a2 2 0 0 0-2-2H6.5a2 2 0 0 0-2 2V13a2 2 0 0 0 2 2H9"/>`,
	"key":       `<circle cx="8.5" cy="15.5" r="4"/><path d="M11.5 12.5l8-8M16 8l2.5 2.5M13.5 10.5l1.5 1.5"/>`,
	"logout":    `<path d="M10 4.5H6.5A1.5 1.5 0 0 0 5 6v12a1.5 1.5 0 0 0 1.5 1.5H10M15 8.5l3.5 3.5-3.5 3.5M18.5 12H10"/>`,
	"sun":       `<circle cx="12" cy="12" r="3.8"/><path d="M12 3.5v2M12 18.5v2M3.5 12h2M18.5 12h2M6 6l1.4 1.4M16.6 16.6L18 18M18 6l-1.4 1.4M7.4 16.6L6 18"/>`,
	"moon":      `<path d="M19.5 14.2A8 8 0 0 1 9.8 4.5a8 8 0 1 0 9.7 9.7z"/>`,
	"screen":    `<rect x="3.5" y="5" width="17" height="11.5" rx="2"/><path d="M9 20h6M12 16.5V20"/>`,
	"home":      `<path d="M4.5 11L12 4.5l7.5 6.5M6.5 9.5V19h11V9.5"/>`,
	"back":      `<path d="M14.5 6l-6 6 6 6"/>`,
	"download":  `<path d="M12 4.5v11M7.5 11l4.5 4.5 4.5-4.5M5 19.5h14"/>`,
	"bell":      `<path d="M5 16.8h14l-2.2-3.3V10a4.8 4.8 0 0 0-9.6 0v3.5zM9.8 19.7a2.4 2.4 0 0 0 4.4 0"/>`,
	"chevron":   `<path d="M7 10l5 5 5-5"/>`,
	"lock":      `<rect x="5.5" y="10.5" width="13" height="9" rx="2"/><path d="M8.5 10.5V8a3.5 3.5 0 0 1 7 0v2.5"/>`,
	"box":       `<path d="M12 3.8l7.5 4v8.4l-7.5 4-7.5-4V7.8zM4.5 7.8l7.5 4 7.5-4M12 11.8v8.4"/>`,
	"clock":     `<circle cx="12" cy="12" r="8"/><path d="M12 7.5V12l3 2"/>`,
	"hourglass": `<path d="M7 4.5h10M7 19.5h10M8 4.5c0 4.5 4 4.5 4 7.5s-4 3-4 7.5M16 4.5c0 4.5-4 4.5-4 7.5s4 3 4 7.5"/>`,
	"server":    `<rect x="4.5" y="4.5" width="15" height="6.5" rx="2"/><rect x="4.5" y="13" width="15" height="6.5" rx="2"/><path d="M8 7.8v.1M8 16.2v.1"/>`,
	"people":    `<circle cx="9" cy="9" r="3.2"/><path d="M3.5 18.5a5.5 5.5 0 0 1 11 0M15.5 6.2a3.2 3.2 0 0 1 0 5.6M17 14a5.5 5.5 0 0 1 3.5 4.5"/>`,
	"terminal":  `<rect x="3.5" y="5" width="17" height="14" rx="2"/><path d="M7 9.5l3 2.5-3 2.5M12.5 15H17"/>`,
	"cpp":       `<path d="M10.5 8.6a4.6 4.6 0 1 0 0 6.8M13.2 12h3M14.7 10.5v3M18 12h3M19.5 10.5v3"/>`,
	"data":      `<ellipse cx="12" cy="6.5" rx="7" ry="2.8"/><path d="M5 6.5v11c0 1.5 3.1 2.8 7 2.8s7-1.3 7-2.8v-11M5 12c0 1.5 3.1 2.8 7 2.8s7-1.3 7-2.8"/>`,
	"go":        `<path d="M3 9.5h3M2 12h4M3.5 14.5H6M14.2 9.6A4 4 0 1 0 15 13h-3.4M21.5 12a2.6 2.6 0 1 1-5.2 0 2.6 2.6 0 0 1 5.2 0z"/>`,
	"java":      `<path d="M6 11h10v4.5a3.5 3.5 0 0 1-3.5 3.5h-3A3.5 3.5 0 0 1 6 15.5zM16 12.3h1.5a2.2 2.2 0 0 1 0 4.4H16M9 8.5c-1.500-1.600 1.500-2.400 0-4M12.5 8.5c-1.500-1.600 1.500-2.400 0-4"/>`,
	"node":      `<path d="M12 3.5l7.5 4.25v8.5L12 20.5l-7.5-4.25v-8.5zM9.5 15.5V9l5 6.5V9"/>`,
	"python":    `<path d="M12 4H9.500A2.500 2.500 0 0 0 7 6.500V9h6M7 9H6a2.500 2.500 0 0 0-2.500 2.500V14A2.500 2.500 0 0 0 6 16.500h1V14a2 2 0 0 1 2-2h5a2.500 2.500 0 0 0 2.500-2.500v-3A2.500 2.500 0 0 0 14 4zM12 20h2.500a2.500 2.500 0 0 0 2.500-2.500V15h-6M17 15h1a2.500 2.500 0 0 0 2.500-2.500V10A2.500 2.500 0 0 0 18 7.500h-1.500M9.800 6.500v.1M14.200 17.500v.1"/>`,
	"search":    `<circle cx="10.8" cy="10.8" r="5.8"/><path d="M15.2 15.2l4.3 4.3"/>`,
}

// icon returns a decorative picture; the text next to it carries the meaning.
func icon(name string) template.HTML {
	body, ok := icons[name]
	if !ok {
		panic("no icon " + name)
	}
	return template.HTML(`<svg class="icon" viewBox="0 0 24 24" width="20" height="20" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">` + body + `</svg>`)
}
