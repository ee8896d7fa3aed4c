export const text = 'before'
