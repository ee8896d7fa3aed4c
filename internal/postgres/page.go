package postgres

// Page selects a part of a list.
type Page struct {
	Limit  int    // at most MaxList; 0: DefaultList
	Cursor string // of the previous page; empty: the first page
}

// Bounds of a page's length.
const (
	DefaultList = 50
	MaxList     = 200
)

// Size is the number of entries that the page may have.
func (p Page) Size() int {
	if p.Limit <= 0 {
		return DefaultList
	}
	return min(p.Limit, MaxList)
}

// cutPage returns a page of size rows from a list that was read with one row more, and the
// cursor of the next page, "" at the end. at is the place of a row in the list.
func cutPage[T any](list []T, size int, at func(T) place) (page []T, next string) {
	if len(list) <= size {
		return list, ""
	}
	return list[:size], at(list[size-1]).cursor()
}
